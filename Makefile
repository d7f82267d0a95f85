# Two front doors: `make demo` shows the main job on a real Kubernetes, `make test` proves it.
# Everything they need is fetched on the way: uv and tox into .venv, Debian packages when root, Go-built tools into the cache.
# Temporary files go here, not to the system's folder: uv leaves a lock for each virtual environment, and others leave theirs.
export TMPDIR := $(CURDIR)/.venv/tmp
TOX = .venv/bin/tox run --quiet
# Two at a time, each shown when it ends; the node tier is the longest, so it is the first.
SIDE_BY_SIDE = .venv/bin/tox run-parallel --quiet --parallel 2 --parallel-no-spinner

# What the cluster tier needs of another Kubernetes, at night.
OLDEST = kube-apiserver kube-controller-manager kubelet-spdy

.DEFAULT_GOAL := help
.PHONY: help demo playground matrix picture test nightly lab lab-down bench docs format lint unit integration pack image program chart clean
help:                      ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
demo: .venv/ready          ## watch a TFJob hang beside Istio's sidecar, then complete
	@$(TOX) -e demo
playground: .venv/ready    ## leave a cluster with hung pods and istio-aux running, to try it (root)
	@$(TOX) -e demo -- --playground
matrix: .venv/ready        ## the tests on every supported Kubernetes and Python; hours (ROWS="1.32/cluster" for some)
	@.venv/bin/python tests/matrix.py $(ROWS)
picture: .venv/ready       ## run the demo and keep its timeline as the picture of the README (root)
	@$(TOX) -e demo -- --picture docs/timeline.svg
test: .venv/ready          ## lint, types, unit, cluster and node tiers
	@rm -rf test-results; $(TOX) -e lab -- build || exit; $(SIDE_BY_SIDE) -e node,cluster,unit,lint,static,docs,integration-collect; s=$$?; \
	.venv/bin/python tests/summary.py test-results; exit $$s
nightly: .venv/ready       ## what `make test` leaves out, and the cluster tier on Kubernetes 1.32 (root)
	@rm -rf test-results; LAB_KUBERNETES=1.32 $(TOX) -e lab -- build $(OLDEST) || exit; $(TOX) -e nightly,cluster-1.32; s=$$?; \
	.venv/bin/python tests/summary.py test-results; exit $$s
lab: .venv/ready           ## leave a cluster running and print its kubeconfig
	@$(TOX) -e lab -- up --level node
lab-down: .venv/ready      ## end what `lab` or `playground` left running, leaving nothing behind
	@$(TOX) -e lab -- down
bench: .venv/ready         ## how fast proxies of finished pods are freed, beside a controller in Go
	@$(TOX) -e bench
docs: .venv/ready          ## build the site of the documents in build/site, without the network; a warning is an error
	@$(TOX) -e docs && echo build/site/index.html
format: .venv/ready        ## rewrite the code in the project's format
	@$(TOX) -e format
lint: .venv/ready          ## format, rules, spelling, floors, workflows
	@$(TOX) -e lint
unit: .venv/ready          ## the unit tier
	@$(TOX) -e unit
integration: .venv/ready   ## the charm on a Juju of yours (CHARM_PATH)
	@$(TOX) -e integration
pack: .venv/ready          ## write the charm to dist/, for the Python that ships (a local structural pack, not an official build)
	@$(TOX) -e pack
image: .venv/ready         ## write to dist/: the OCI image, the wheel, and bills of materials of image and charm
	@$(TOX) -e image
program: .venv/ready       ## write the program to dist/ as one file that needs no Python, and its bill of materials
	@$(TOX) -e program
chart: .venv/ready         ## check and package the Helm chart, render plain manifests from it into dist/, and install it (root)
	@$(TOX) -e chart
clean:                     ## remove what the targets above made in this folder
	@rm -rf .venv .tox build test-results demo-report dist .ruff_cache .pytest_cache .coverage.*
.venv/ready: tests/bootstrap.sh tests/bootstrap.txt
	@sh tests/bootstrap.sh .venv && touch $@
