"""Make the proxies of finished pods exit, and prove that they did.

`facts` reads a pod once. `rules` decides by these facts, and `state` says what follows from one
decision after another. All three are pure. `controller` performs that, `slots` says whose turn it
is, `recorder` tells.
"""
