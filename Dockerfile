# A server for models in a folder. From a checkout:
#   docker build -t tierank . && docker run -p 8080:8080 -v "$PWD/model:/models/model:ro" tierank
# For an image with the model inside: FROM tierank, then COPY model /models/model
FROM python:3.13-slim AS build
COPY . /tierank
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /tierank

FROM python:3.13-slim
# LightGBM needs libgomp1. All kernels are compiled here, so that the first request is as fast as the others.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "tierank[serve] @ file://$(ls /wheels/*.whl)" \
 && tierank compile && useradd --create-home app
USER app
EXPOSE 8080
CMD ["tierank", "serve", "/models/model", "--host", "0.0.0.0", "--json"]
