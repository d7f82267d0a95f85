"""What the workload says of Istio's webhook configurations, read through the real API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import lab
import lightkube
import pytest
from lab.served import metric
from lab.workload import Workload
from lightkube import ApiError
from lightkube.models.admissionregistration_v1 import (
    MutatingWebhook,
    RuleWithOperations,
    WebhookClientConfig,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

NEVER = LabelSelector(matchLabels={"istio.io/deactivated": "never-match"})

Create = Callable[[str], MutatingWebhookConfiguration]


@pytest.fixture
def create(client: lightkube.Client, workload: Workload) -> Iterator[Create]:
    """Makes a configuration with one of Istio's webhooks, which nothing has to obey."""
    await_told(workload)
    names: list[str] = []

    def create(name: str) -> MutatingWebhookConfiguration:
        names.append(name)
        return client.create(
            MutatingWebhookConfiguration(
                metadata=ObjectMeta(name=name),
                webhooks=[
                    MutatingWebhook(
                        name="namespace.sidecar-injector.istio.io",
                        admissionReviewVersions=["v1"],
                        clientConfig=WebhookClientConfig(url="https://127.0.0.1:9/inject"),
                        namespaceSelector=LabelSelector(matchLabels={"lab.test/nobody": "yes"}),
                        rules=[RuleWithOperations([""], ["v1"], ["CREATE"], ["pods"])],
                        sideEffects="None",
                    )
                ],
            )
        )

    yield create
    for name in names:
        try:
            client.delete(MutatingWebhookConfiguration, name)
        except ApiError as error:
            if error.status.code != 404:
                raise


def await_told(workload: Workload, *names: str) -> None:
    """Return when /status names these configurations and no other, and metric and log agree."""
    lab.until(
        lambda: workload.status()["called-before-us"] == [*names],
        timeout=30,
        what=f"/status to name {names or 'no configuration'}",
    )
    assert metric(workload, "istio_aux_configurations_called_before_ours") == len(names)
    lines = [json.loads(line) for line in workload.process.log.read_text().splitlines()]
    told = [line["before"] for line in lines if line["event"] == "order"]
    assert (told or [[]])[-1] == [*names]


def test_a_configuration_that_is_called_before_ours_is_reported_while_it_exists(
    client: lightkube.Client, workload: Workload, create: Create
):
    """T33: a vendor may call it anything."""
    create("aaa-sidecar-injector")
    await_told(workload, "aaa-sidecar-injector")

    client.delete(MutatingWebhookConfiguration, "aaa-sidecar-injector")
    await_told(workload)


def test_one_that_istioctl_deactivates_is_called_no_more(
    client: lightkube.Client, workload: Workload, create: Create
):
    """T33."""
    configuration = create("aaa-sidecar-injector")
    await_told(workload, "aaa-sidecar-injector")

    assert configuration.webhooks
    webhook = configuration.webhooks[0]
    webhook.namespaceSelector = webhook.objectSelector = NEVER
    client.replace(configuration)

    await_told(workload)


def test_one_that_is_called_after_ours_is_none_of_our_business(workload: Workload, create: Create):
    """T33."""
    create("istiod-sidecar-injector")
    create("aaa-sidecar-injector")

    await_told(workload, "aaa-sidecar-injector")
