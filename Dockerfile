# syntax=docker/dockerfile:1

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CACHE_DIR=/var/cache/pip
RUN python -m venv /opt/terrine
ENV PATH=/opt/terrine/bin:$PATH

# PyTorch first: the largest layer by far, and the one that changes least.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ARG ALLOW_CUDA=no
COPY docker/refuse_cuda.py /build/
RUN --mount=type=cache,target=/var/cache/pip <<'EOS'
set -eu
if [ -n "$TORCH_INDEX" ]; then set -- --index-url "$TORCH_INDEX"; fi
set -- "$@" "$TORCH"
if [ "$ALLOW_CUDA" != yes ]; then
    pip install --dry-run --quiet --report /build/plan.json "$@"
    python /build/refuse_cuda.py /build/plan.json
fi
pip install --no-compile "$@"
EOS
# A fifth of it are names for debuggers.
RUN <<'EOS'
set -eu
apt-get update
apt-get install --yes --no-install-recommends binutils
strip --strip-unneeded /opt/terrine/lib/python3.11/site-packages/torch/lib/*.so
EOS

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY docker/requirements.lock docker/
COPY server server
COPY client client
COPY models models
COPY migrations migrations
RUN --mount=type=cache,target=/var/cache/pip <<'EOS'
set -eu
pip wheel --no-deps --wheel-dir /build .
pip install --no-compile --require-hashes --requirement docker/requirements.lock
pip install --no-compile --no-deps /build/terrine-*.whl
pip check
[ "$ALLOW_CUDA" = yes ] || python -c 'import sys, torch; sys.exit(torch.version.cuda and "CUDA torch")'
EOS

# RAY=yes: with Ray, for servers and machines of a cluster (docs/addons/ray.md). Its Java is left out.
ARG RAY=no
COPY docker/requirements-ray.lock docker/
RUN --mount=type=cache,target=/var/cache/pip <<'EOS'
set -eu
[ "$RAY" = yes ] || exit 0
pip install --no-compile --require-hashes --requirement docker/requirements-ray.lock
pip check
cd /opt/terrine/lib/python3.11/site-packages
rm -r ray/jars
python -m compileall -q -x '/ray/(data|llm|rllib|serve|train|tune)/' ray
EOS

# Without the packages' own tests, what only C++ extensions need, the parts of Arrow that speak to other
# machines, and pip, which has done its work. The rest must still import, and is compiled as far as
# Terrine imports it.
COPY docker/compile_imported.py /build/
RUN <<'EOS'
set -eu
cd /opt/terrine/lib/python3.11/site-packages
find . -type d -name tests -prune -exec rm -rf {} +
rm -rf torch/test torch/include torch/share torch/bin/test_* torch/bin/*Test torch/bin/protoc* torch/lib/*_test.so
rm -rf onnx/backend/test pyarrow/include pyarrow/includes pyarrow/src pyarrow/*_flight* pyarrow/*_s3*
pip uninstall --quiet --yes pip
python /build/compile_imported.py
EOS


FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Terrine" \
      org.opencontainers.image.licenses="Apache-2.0"

RUN useradd --system --uid 10001 --home-dir /var/lib/terrine --shell /usr/sbin/nologin terrine \
 && install --directory --owner terrine --group terrine --mode 700 /var/lib/terrine
COPY docker/with-files /usr/local/bin/
COPY --from=build /opt/terrine /opt/terrine

ENV PATH=/opt/terrine/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TERRINE_DATA_DIR=/var/lib/terrine \
    TERRINE_HOST=* \
    TERRINE_PORT=8000

USER terrine
WORKDIR /var/lib/terrine
VOLUME /var/lib/terrine
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"TERRINE_PORT\"]}/healthz', timeout=4)"]
ENTRYPOINT ["terrine"]
CMD ["serve"]
