"""What the lab cannot do on this machine, or was not asked well for."""


class LabError(Exception):
    """No bug of the lab; the message says in one line what is the matter."""
