import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["compare", "read", "run", "synthetic"]

_Path = str | os.PathLike[str]
_Json = dict[str, Any]
_Rows = Sequence[Mapping[str, Any]]
_Workload = _Path | _Rows
_Named = _Path | Mapping[str, Any]
_Progress = Callable[[str, float, int, int], object]

def run(workload: _Workload | None = ..., cluster: _Named | None = ..., policy: str = ..., *, seed: int = ...,
        jobs: int | None = ..., applications: _Path | None = ..., scenario: _Named | None = ..., load: float = ...,
        budget: str | float | None = ..., information: str = ..., device_cost: float | None = ..., noise: float = ...,
        unique: bool = ..., interval: float | None = ..., restart: float | None = ..., interference: float = ...,
        control: bool = ..., tiers: bool = ..., services: int = ..., teams: int = ...,
        progress: _Progress | None = ...) -> _Json: ...
def compare(workloads: _Workload | Sequence[_Workload] | None = ..., cluster: _Named | None = ...,
            policies: Sequence[str] = ..., *, seed: int = ..., seeds: int = ..., bound: bool = ..., jobs: int | None = ...,
            applications: _Path | None = ..., scenario: _Named | None = ..., load: float = ...,
            budget: str | float | None = ..., information: str = ..., device_cost: float | None = ..., noise: float = ...,
            unique: bool = ..., interval: float | None = ..., restart: float | None = ..., interference: float = ...,
            control: bool = ..., tiers: bool = ..., services: int = ..., teams: int = ...,
            progress: _Progress | None = ...) -> _Json: ...
def synthetic(jobs: int = ..., hours: float | None = ..., *, seed: int = ..., applications: _Path | None = ...,
              tiers: bool = ..., services: int = ..., teams: int = ...) -> list[_Json]: ...
def read(file: _Path, applications: _Path | None = ...) -> list[_Json]: ...
