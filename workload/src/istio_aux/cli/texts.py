"""What `--help` says of each command: a summary, examples, and how to read an answer."""

TEXTS = {
    "explain": (
        "say what would be done about pods, and why",
        """\
examples:
  istio-aux explain -n training tfjob/mnist
  istio-aux explain training/mnist-worker-0 training/mnist-worker-1
  istio-aux explain -n training -l app=mnist
  istio-aux explain -f tfjob.yaml --sidecars cloud-sql-proxy=quit
  kubectl get pods -A -o json | istio-aux explain -f -
  istio-aux explain -A -o json | jq -r 'select(.action == "wait").reason'

TYPE is what kubectl takes. The pods of a workload are those that have it as an
owner, over any number of owners between them; in a file, those that it will
have. In files, grace periods count as over; their newest time shows what the
kubelet forgot to start.
It also says if a Job has failed, is suspended or has another controller, and if
it has no pods, what Events say about its pods.

Exit status: 1 if a pod cannot be read, or what is named has no pods; 2 if a
document is bad, or a file has documents, but none with known pods. All other
pods are answered.""",
    ),
    "mutate": (
        "show how pods would be changed when they are created",
        """\
examples:
  istio-aux mutate -f tfjob.yaml -o diff
  istio-aux mutate -f pod.yaml --capability native
  istio-aux mutate -f review.json | jq -r .response.patch | base64 -d

The answer to a pod is the changed pod; to a workload, the manifest with its pod
templates changed like its pods, without the labels that a controller adds; to
an AdmissionReview (admission.k8s.io/v1) the review that the webhook returns.

Exit status: 2 if a document is bad, or a file has documents, but none with
known pods.""",
    ),
    "serve": (
        "run the admission webhook and the quit and repair controllers",
        """\
examples:
  istio-aux serve --config /etc/istio-aux/config.yaml
  istio-aux serve --config config.yaml --kubeconfig ~/.kube/config

Logs JSON lines on stdout. SIGTERM stops it after the work in flight; a second
SIGTERM stops it at once.""",
    ),
    "audit": (
        "list the pods of a cluster that hang because of a sidecar, or have none",
        """\
examples:
  istio-aux audit
  istio-aux audit -n training -o json | jq -r .name
  istio-aux audit -n training tfjob/mnist
  istio-aux audit --config config.yaml
  istio-aux audit --holders -o json | jq .requests.gpus
  istio-aux audit --report page.html
  kubectl get pods,namespaces,mutatingwebhookconfigurations -A -o json \\
    | istio-aux audit -f -

Reads pods that have not succeeded, and changes nothing. A row is for the pods
of an owner that have one state for one reason, such as all Jobs of a CronJob;
`explain -n NS NAME` has each pod.
States:
  stuck     every payload container is finished, and the proxy still runs
  blocked   payload containers are finished, and the reason names what keeps the
            pod: containers, a proxy that cannot exit, or a bad annotation; or
            the pod is Terminating for five minutes after its grace period
  lost      the proxy ended, and a payload container may still run
  unstarted the payload has not started, because of the container that the
            reason names: a sidecar that is not ready, or that cannot run
  unmeshed  the pod is outside the mesh, in which Istio would put it today
  failed    in the last hour the pod failed because of its mesh; or the payload
            of a pod that runs has ended its native proxy
SINCE is when the last finished container ended; for a lost pod, when its proxy
ended; for an unstarted pod, when its payload could have started; for an
unmeshed pod, when it was created; for a deleted one, when that began; for a
failed one, when it or its proxy ended. Jobs whose pods were refused in the last
15 minutes are named on stderr.

Files are judged as of the newest time in them. What is not in them is not
known: without namespaces which of them are selected, without webhook
configurations what istio-aux does and whether Istio injects, and without
Istio's ConfigMap istio-sidecar-injector which pods it injects unasked.

Exit status: 1 if something cannot be read or is not known, 2 if the credentials
or a document cannot be used.""",
    ),
    "check": (
        "say what would keep istio-aux from working in a cluster, and what to do about it",
        """\
examples:
  istio-aux check
  istio-aux check -o json | jq -r 'select(.result != "ok") | .what'
  istio-aux check --pre --namespace-selectors team=research
  istio-aux check --to native

Changes nothing, and needs no istio-aux in the cluster; if there is one, its
settings count. --to says instead what breaks or stays behind, by
namespace, when it moves to native sidecars or to an ambient mesh. Results:
  ok       nothing to do
  note     istio-aux works, but not all of it, or not everywhere
  problem  istio-aux does not work
  unknown  this could not be found out

Exit status: 1 if there is a problem, something is unknown or the API server
does not answer; 2 if settings or credentials cannot be used.""",
    ),
    "completion": (
        "print what makes a shell complete the commands and their options",
        """\
examples:
  istio-aux completion fish > ~/.config/fish/completions/istio-aux.fish
  source <(istio-aux completion bash)
  source <(istio-aux completion zsh)

The last two are lines of ~/.bashrc and of ~/.zshrc; in zsh after compinit.""",
    ),
    "quit": (
        "free the pods that hang: tell the proxies of finished pods to exit, once",
        """\
examples:
  istio-aux quit -n training
  istio-aux quit -n training tfjob/mnist --yes
  istio-aux quit -A -l app=mnist

Does once what `serve` does all the time, with your own rights, in any
namespace. A pod that still works is left alone. Outcomes:
  would-free  without --yes: its proxy would be told to exit
  would-cut-off
              the same, and another container would keep the pod without network
  freed       its proxy has exited, and the pod has ended
  stuck       the pod is still there; the reason says why
  kept        the pod was left alone; the reason says why
  gone        the pod ended otherwise
  ended       the pod had ended before, and holds nothing

Exit status: 1 if a pod is stuck or a named pod is kept, rights are missing or
the API server does not answer; 2 if the credentials cannot be used.""",
    ),
    "restart-unmeshed": (
        "restart pods that should have a sidecar and have none, once",
        """\
examples:
  istio-aux restart-unmeshed
  istio-aux restart-unmeshed -n team --limit 5 --yes

Does once what `serve` does all the time with race-policy: restart. Pods of Jobs
stay. The next pod of a controller follows when the new one is Ready
with its sidecar. Outcomes:
  restarted      the pod was evicted
  would-restart  without --yes: it would be
  kept           it was not, or not yet; the reason says why not

Exit status: 1 if pods may not be restarted or not all were in time, 2 if
settings or credentials cannot be used.""",
    ),
}
