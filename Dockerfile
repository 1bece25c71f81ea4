# One image for every service, the NATS server, the command line and the examples.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
RUN python3 -m venv /opt/penstock
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY tools/dependencies.py tools/
RUN python3 tools/dependencies.py examples optuna > requirements.txt \
    && /opt/penstock/bin/pip install --no-cache-dir --disable-pip-version-check -r requirements.txt
COPY libs libs
COPY services services
RUN /opt/penstock/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .

FROM ${PYTHON_IMAGE}
RUN useradd --create-home --uid 10001 penstock \
    && mkdir -p /data /auth /checkpoints && chown penstock: /data /auth /checkpoints
COPY --from=build /opt/penstock /opt/penstock
# A folder for each login, so that a volume that is mounted there belongs to the user of the containers.
RUN /opt/penstock/bin/python -c "from penstock_bus.access import USERS; print(*USERS)" | xargs -n1 \
    | sed 's|^|/auth/|' | xargs install -d -o penstock -m 700
COPY examples /opt/penstock/examples
# Kernels are compiled here, for any processor of the architecture, and only read later: also from a read-only root.
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PENSTOCK_LOG_FORMAT=json NUMBA_CPU_NAME=generic
RUN python -m penstock_policies.matching.matching_warmup && python -m penstock_simulator.fast.fast_warmup
USER penstock
WORKDIR /opt/penstock/examples
ENTRYPOINT ["penstock"]
