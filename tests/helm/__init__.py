"""The Helm chart: what of it is made from the charm, and its tests, which need `helm`."""
