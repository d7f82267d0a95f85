"""Schema of the databags of `istio_sidecar`, version 0. It needs Pydantic alone."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# The value of a label and the name of a namespace: an RFC 1123 label.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class RequirerAppData(BaseModel):
    """What the asking application writes."""

    model_config = ConfigDict(extra="ignore")

    application: Name = Field(
        description="Name of the asking application, which Juju hides across models.",
        examples=["tensorboard"],
    )
    model: Name = Field(description="Name of its model.", examples=["kubeflow"])


class ProviderAppData(BaseModel):
    """What istio-aux answers."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    live: Literal["true", "false"] = Field(
        description="Whether a pod that is created now gets its sidecar."
    )
    reason: str = Field("", description="One line: why the mesh is not live, or what injects.")
    meshed: Literal["true", "false", "unknown"] = Field(
        "unknown", description="Whether each running pod of the application has its sidecar."
    )
    meshed_reason: str = Field(
        "", alias="meshed-reason", description="One line: which pods have none, or why unknown."
    )
    root_namespace: str | None = Field(
        None,
        alias="root-namespace",
        description="Namespace of the control plane, absent while unknown.",
    )
    revision: str | None = Field(
        None, description="Revision that injects into the pods, absent while unknown."
    )
