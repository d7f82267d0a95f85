"""Stand-in for Juju, which is in no package registry: enough of it to run a packed charm.

It emulates the agent and the hook tools; order of events, authorisation and retries are our own.
The charm's `dispatch`, ops, its virtual environment, Pebble, the API server and RBAC are real. It
plays what goes well, and

* rights that come after config-changed (`App.trust(late=True)`); a controller's model
  (`Model(..., namespace=...)`);
* hooks that fail, and are tried again while later ones wait;
* units that are pods: probed by Pebble's health, replaced or killed (`App.replace_pod`), rolled out
  with two revisions side by side (`App.refresh`), their containers restarted
  (`Container.process.restart`), their hooks at the same time;
* `App.scale`, another leader (`App.elect`), removal without a hook (`App.remove(force=True)`,
  `Model.destroy`);
* what went wrong in Juju itself, with the thread that says so: relations that end without data
  (`Relation.remove(bare=True)`), secrets without content (`App.lose_secrets`), hooks whose changes
  are lost (`App.run(..., lost=True)`), leaders that do not know that they were deposed
  (`App.elect(deposed=False)`), units that nobody saw depart (`App.scale(forgotten=True)`), pods
  that are replaced without a word (`replace_pod(told=False)`) or whose containers start late
  (`boot=False`), a controller that is away (`Model.outage`).

What it does not show: the order of events among units as Juju has it, the time that a leadership
takes to run out, authorisation by a controller, revisions of secrets and their events, what a
liveness probe or a PodDisruptionBudget does, offers between models, the exact wording of any Juju
version. It emulates the hook tools that the charm calls; another one is not found.
"""

from .app import App, Relation, consume
from .model import Model
from .unit import DispatchError, Outcome

__all__ = ["App", "DispatchError", "Model", "Outcome", "Relation", "consume"]
