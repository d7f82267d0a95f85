"""containerd as the lab runs it: everything it writes lies in the node's own /run."""

from __future__ import annotations

from pathlib import Path

SOCKET = "/run/containerd/containerd.sock"
CNI_CONFIGURATION = "/run/lab/cni"
# Debian, and where upstream's archives are unpacked.
CNI_PROGRAMS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

CONFIGURATION = """\
version = 2
root = "/run/lab/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "/run/lab/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE runc fails on a lower score: "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_programs}"
    conf_dir = "{cni_configuration}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def cni_programs() -> Path | None:
    """The folder of the CNI programs, if there is one."""
    return next((path for path in CNI_PROGRAMS if (path / "ptp").exists()), None)


def configuration(pause: str) -> str:
    """containerd's configuration (version 2, read by 1.6 and later)."""
    return CONFIGURATION.format(
        socket=SOCKET,
        pause=pause,
        cni_programs=cni_programs(),
        cni_configuration=CNI_CONFIGURATION,
    )
