"""Make the proxies of finished pods exit, and prove that they did.

`facts` says what follows from a pod. `rules` decides by that, and `state` says what follows from
one decision after another. All three are pure. `controller` performs and reports that.
"""
