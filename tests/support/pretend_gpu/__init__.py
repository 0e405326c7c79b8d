"""A pretend GPU, for machines without one. As a plugin of pytest it gives a GPU to the tests with the marker `cuda`:

PYTHONPATH=tests pytest -p support.pretend_gpu -m cuda
"""

from support.pretend_gpu.driver import load_driver

load_driver()

from support.pretend_gpu.cuda import install  # noqa: E402  must come after the driver

install()
