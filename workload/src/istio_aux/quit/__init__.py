"""Make the proxies of finished pods exit, and prove that they did.

`facts` says what follows from a pod, and `rules` decides by that. `state` says what is due by the
newest decision, and `task` which attempt is next. All four are pure. `controller` performs
that, and `recorder` reports it.
"""
