"""What the Helm chart has in common with the charm is made from it. `tox -e chart` runs `helm`."""

from __future__ import annotations

import json
from pathlib import Path

import promql_parser
import pytest
import yaml
from helm import generate
from istio_aux import settings
from istio_aux.model.names import REPOSITORY

MADE = generate.files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_from_the_charm_is_as_the_charm_has_it(path: Path) -> None:
    assert path.read_text() == MADE[path], "run `python -m helm.generate`"


def test_every_setting_is_a_value_or_one_that_the_chart_decides() -> None:
    schema = json.loads((generate.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((generate.CHART / "values.yaml").read_text())

    assert schema["properties"]["settings"]["properties"].keys() == {*generate.SETTINGS}
    assert values["settings"].keys() == {*generate.SETTINGS}
    assert {*generate.SETTINGS} | generate.DECIDED == settings.OPTIONS.keys()


def test_every_value_is_in_the_schema_and_has_its_type() -> None:
    schema = json.loads((generate.CHART / "values.schema.json").read_text())
    values = (generate.CHART / "values.yaml").read_text()
    types = {"array": list, "boolean": bool, "integer": int, "number": int, "object": dict}
    types["string"] = str

    for path in generate.comments(values):
        described = schema
        for name in path.split("."):
            described = described["properties"][name]
        value = generate.value_at(yaml.safe_load(values), path)
        assert (
            value in described["enum"]
            if "enum" in described
            else type(value) is types[described["type"]]
        ), path
    # Helm's own, for charts that have this one as a part.
    assert schema["properties"].keys() - yaml.safe_load(values).keys() == {"global"}


def test_the_chart_has_the_addresses_of_the_charm_and_no_others() -> None:
    chart = (generate.CHART / "Chart.yaml").read_text()
    made = {"website": "https://example.com", "source": ["https://example.com/source"]}
    addressed = yaml.safe_load(generate.chart(chart, made | {"summary": "It is short."}))

    assert (addressed["home"], addressed["sources"]) == (made["website"], made["source"])
    assert yaml.safe_load(chart)["home"] == REPOSITORY
    assert yaml.safe_load(chart)["icon"].startswith("data:image/svg+xml;base64,")


def test_every_alert_of_the_chart_is_about_one_release_and_none_speaks_of_juju() -> None:
    text = (generate.CHART / "files/alerts.yaml").read_text()
    for name in ("MODEL", "APP"):
        text = text.replace(f"@{name}@", "ours")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]

    assert len(rules) > 10
    for rule in rules:
        shown = " ".join((rule["expr"], *rule["annotations"].values()))
        assert "juju" not in shown.lower()
        assert "charm" not in shown
        assert promql_parser.parse(rule["expr"])
        assert rule["expr"].count("{") == rule["expr"].count('{namespace="ours", job="ours"')
