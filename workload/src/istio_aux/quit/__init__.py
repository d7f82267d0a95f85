"""Make the proxies of finished pods exit, and prove that they did.

`controller` follows pods and performs what `core.quit_state` says is next; `slots` says whose turn
it is.
"""
