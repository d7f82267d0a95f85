"""Make the proxies of finished pods exit, and prove that they did.

`facts` says what follows from a pod, `pairs` which containers wait for each other, and `rules`
decides by that. `attempt` says what is due by the newest decision, and which attempt is next. All
four are pure. `controller` performs the attempts, and `recorder` reports them.
"""
