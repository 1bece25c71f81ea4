# One image for every service, the NATS server, the command line and the examples.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/penstock
WORKDIR /src
COPY locks/build.txt locks/image.txt locks/
# Nothing without a hash that the lock has: `make lock` renews it. The environment of the image has no pip.
RUN /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r locks/build.txt \
    && /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
        --require-hashes -r locks/image.txt -w /wheels \
    && /opt/build/bin/pip --python /opt/penstock install --disable-pip-version-check --no-deps --no-index /wheels/*.whl
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY services services
RUN /opt/build/bin/pip wheel --disable-pip-version-check --no-deps --no-index --no-build-isolation . -w /penstock \
    && /opt/build/bin/pip --python /opt/penstock install --disable-pip-version-check --no-deps --no-index /penstock/*.whl

FROM ${PYTHON_IMAGE}
RUN useradd --create-home --uid 10001 penstock \
    && mkdir -p /data /auth /checkpoints /memory /aggregator /var/lib/penstock \
    && chown penstock: /data /auth /checkpoints /memory /aggregator /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
# A folder for each login, so that a volume that is mounted there belongs to the user of the containers.
RUN /opt/penstock/bin/python -c "from penstock_bus.identity import access; print(*access.LOGINS, *access.users_of_roles())" | xargs -n1 \
    | sed 's|^|/auth/|;$a /auth/servers' | xargs install -d -o penstock -m 700
COPY examples /opt/penstock/examples
# Kernels are compiled here, for any processor of the architecture, and only read later: also from a read-only root.
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PENSTOCK_LOG_FORMAT=json NUMBA_CPU_NAME=generic
RUN python -m penstock_policies.matching.matching_warmup && python -m penstock_simulator.fast.fast_warmup
USER 10001:10001
WORKDIR /opt/penstock/examples
ENTRYPOINT ["penstock"]
