"""Make the proxies of finished pods exit, and prove that they did.

`controller` follows pods and performs what `core.quit_state` says is next; `attempt` has its
requests and how many run at once. What is right for a pod is decided in `core.quit`.
"""
