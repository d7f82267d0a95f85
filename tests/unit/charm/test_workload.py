"""What the charm gives the workload is what the workload accepts."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path

import yaml
from istio_aux import cli, settings
from istio_aux.kube import access
from ops import pebble, testing

import workload
from config import Config

from .conftest import Files

CONFIG = Config("team in (a,b)", "Ignore", "debug", {})


def test_the_command_is_one_of_the_workload() -> None:
    service = workload.layer(CONFIG).get("services", {})[workload.SERVICE]
    program, *arguments = shlex.split(service.get("command", ""))

    parsed = cli._parser().parse_args(arguments)

    assert program == "istio-aux"
    assert str(parsed.config) == workload.CONFIG


def test_the_settings_file_is_understood(
    settled: testing.State, files: Files, tmp_path: Path
) -> None:
    assert isinstance(settled.unit_status, testing.ActiveStatus)
    (tmp_path / "config.yaml").write_text(files()["config.yaml"])

    understood = settings.load(tmp_path / "config.yaml")

    assert str(understood.namespace_selector) == "io.datastrophic/istio-aux=enabled"
    assert understood.log_level == "info"
    assert str(understood.tls_certificate) == workload.TLS_CERTIFICATE
    assert str(understood.tls_key) == workload.TLS_KEY
    assert str(understood.kubeconfig) == workload.KUBECONFIG
    assert understood.status_address.port == workload.STATUS_PORT


def test_every_option_reaches_the_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(workload.settings(CONFIG)))

    understood = settings.load(tmp_path / "config.yaml")

    assert str(understood.namespace_selector) == "team in (a,b)"
    assert understood.log_level == "debug"


def test_the_kubeconfig_is_understood(settled: testing.State, files: Files, tmp_path: Path) -> None:
    assert isinstance(settled.unit_status, testing.ActiveStatus)
    contents = files()
    document = yaml.safe_load(contents["kubeconfig"])
    (user,) = document["users"]
    assert user["user"] == {"tokenFile": workload.TOKEN}
    user["user"]["tokenFile"] = str(tmp_path / "token")
    (tmp_path / "token").write_text(contents["token"])
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))

    understood = access.load(tmp_path / "kubeconfig")

    assert understood.server == "https://10.152.183.1:443"
    authority = document["clusters"][0]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(authority).startswith(b"-----BEGIN CERTIFICATE-----")


def test_the_token_is_in_one_file_only(files: Files, settled: testing.State) -> None:
    assert isinstance(settled.unit_status, testing.ActiveStatus)
    contents = files()

    assert [name for name, text in contents.items() if contents["token"] in text] == ["token"]


def test_the_same_settings_make_the_same_layer() -> None:
    again = Config("team in (a,b)", "Fail", "debug", {})

    assert workload.layer(again) == workload.layer(CONFIG)


def test_readiness_of_the_pod_follows_the_workload() -> None:
    checks = pebble.Layer(workload.layer(CONFIG)).checks

    assert checks["ready"].level is pebble.CheckLevel.READY
    assert checks["ready"].http == {"url": "http://localhost:8080/readyz"}
    assert checks["live"].http == {"url": "http://localhost:8080/livez"}


def test_a_workload_that_hangs_is_restarted() -> None:
    service = pebble.Layer(workload.layer(CONFIG)).services[workload.SERVICE]

    assert service.on_check_failure == {"live": "restart"}
