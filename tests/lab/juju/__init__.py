"""Hook tools emulated; ordering, authorisation and retries are ours; the rest is real:

dispatch, ops, the charm's venv, Pebble, kube-apiserver and RBAC.

A stand-in for Juju, of which there is none in a package registry: enough of the agent and of the
hook tools to run a packed charm's own `dispatch`. Beside what goes well it plays rights that come
after config-changed (`App.trust(late=True)`), labels that are forced (`Model.force_labels`), hook
tools that fail (`Model.failing`), secret-remove for what is gone (`App.secret_remove`), removal by
force (`App.remove(force=True)`, `Model.destroy`). What it does not show: order and queueing of
events as Juju has them, retries and backoff, `resolved`, leases and a real change of leader,
authorisation by a controller, the clock of secret rotation, pod churn and rolling upgrades,
offers between models, the exact wording of any Juju version.
"""

from .across import consume
from .app import App
from .dispatch import DispatchError, Outcome
from .model import Model
from .relation import Relation

__all__ = ["App", "DispatchError", "Model", "Outcome", "Relation", "consume"]
