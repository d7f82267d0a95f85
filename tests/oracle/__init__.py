"""The kubelet as oracle: `python -m oracle.play` (`tox -e oracle`).

Whether a container is finished is the kubelet's decision; `model/kubelet.py` only repeats it. So
a million generated pods are shown to both: to the rules of three kubelets, as Go programs that
import them, and to `istio-aux explain`. Both must agree about each container and each pod.

* `pods` makes a pod of a seed and a number: restart policies and rules, init containers, sidecars,
  states, phases and annotations, as they are usual, as they are rare, and as they should not be.
* `kubelet/` has one program and three modules, Kubernetes 1.32.2, 1.34.4 and 1.36.3. It first does
  what the API server of that version does with the pod: defaults, fields that feature gates drop,
  validation. What is refused cannot exist there, and is only counted. Then it asks the kubelet:
  `ShouldContainerBeRestarted`, which asks `ContainerShouldRestart` where the gate is on,
  `ShouldAllContainersRestart`, and `getPhase`, which is not exported and therefore linked by name.
* `play` runs the programs, and the workload's command on the pods as they are stored.
* It says what it means that both agree. The workload may be more cautious than a kubelet, for one
  of the reasons that are listed there; never less:

  - no container is finished that the kubelet may start again;
  - no proxy is told to exit while the kubelet may start a payload container again;
  - a pod whose proxy is told to exit completes as soon as nothing but the proxy exits, with 0;
  - a pod that only its proxy keeps from completing is told so.

* It counts. A disagreement is printed with its pod, and with what both say about it.

What the oracle does not know: the container runtime. It derives its view from the reported
statuses, as the kubelet would have reported them; a container that the runtime removed after its
end is started again by a kubelet, and no status says so beforehand. Of version skew it knows
nothing either: API server and kubelet have the same version.
"""
