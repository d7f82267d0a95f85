"""Make the proxies of finished pods exit, and prove that they did.

`rules` decides about one pod as it is now, `state` what follows from one decision after another,
and both are pure. `controller` performs that, `slots` says whose turn it is, `recorder` tells.
"""
