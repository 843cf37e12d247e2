"""The packages of the wheel, which pyproject.toml cannot say: configs/ is one of medclip_debias."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["medclip_debias*"]), "medclip_debias.configs"],
    package_dir={"medclip_debias.configs": "configs"},
)
