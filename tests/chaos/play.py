"""Plays a plan on a cluster: one thread moves the pods, another kills the program."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import time
from collections.abc import Mapping

import lab
from lab.scene import Scene
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

from chaos.plan import Plan, Step
from chaos.verdict import Verdict, judge, pending

# From the last start until every pod has ended. Measured: 200 pods after 5 s, 20 after 3 s; a pod
# whose quits failed in the last lives may wait for its next attempt.
PATIENCE = 120.0


def play(plan: Plan, scene: Scene, workload: Workload) -> Verdict:
    """Let the plan happen to ``workload``, which runs and serves the namespace of ``scene``.

    It runs at the end, too. Pods that are not freed in time are in the verdict.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as killer:
        deaths = killer.submit(_kill, plan, workload)
        _tell(plan, scene)
        last_start = deaths.result()
    workload.await_ready()
    with contextlib.suppress(TimeoutError):  # The verdict says which ones are stuck.
        lab.until(
            lambda: not pending(plan, _pods(scene)),
            timeout=PATIENCE,
            what="every finished pod to end",
            every=0.2,
        )
    freed = time.monotonic() - last_start
    mine = [e for e in scene.kubelet.execs if e.pod.startswith(f"{scene.namespace}/")]
    return judge(plan, _pods(scene), mine, freed)


def _kill(plan: Plan, workload: Workload) -> float:
    """End each life when it is due, and start the next one; returns when the last one began."""
    for life, delay in zip(plan.lives, plan.delays, strict=True):
        # The plan is made of these times: random moments are what is tested.
        time.sleep(life)
        workload.process.kill(signal.SIGKILL)
        workload.process.wait(30)
        time.sleep(delay)
        workload.start()
    return time.monotonic()


def _tell(plan: Plan, scene: Scene) -> None:
    actors = {actor.name: actor for actor in plan.actors}
    pods: dict[str, Pod] = {}
    begin = time.monotonic()
    for step in plan.steps:
        # Each step has its time in the plan, whatever the program under test makes of it.
        time.sleep(max(0.0, begin + step.at - time.monotonic()))
        if step.verb == "start":
            actor = actors[step.pod]
            pods[step.pod] = pod = scene.start(step.pod, **actor.what)
            if actor.misbehaviour:
                behaviour, times = actor.misbehaviour
                scene.kubelet.misbehave(pod, behaviour, times=times)
        else:
            _change(scene, pods[step.pod], step)


def _change(scene: Scene, pod: Pod, step: Step) -> None:
    match step.verb:
        case "finish":
            scene.kubelet.finish(pod, step.container, step.exit_code)
        case "crash-loop":
            scene.kubelet.crash_loop(pod, step.container)
        case _:
            scene.kubelet.restart(pod, step.container)


def _pods(scene: Scene) -> Mapping[str, Pod]:
    found = scene.client.list(Pod, namespace=scene.namespace)
    return {str(pod.metadata.name): pod for pod in found if pod.metadata}
