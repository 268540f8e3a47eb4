"""Prompts and verifiers: generated tasks, public benchmarks by name, a user's own file.

`load_task(name)` gives a `Task`: its problems and the verifier that judges responses to them.
"""

from esth.tasks.load import NAMES, load_task
from esth.tasks.task import Problem, Task, Verifier, encode, render
from esth.tasks.verifiers import VERIFIERS

__all__ = ["NAMES", "VERIFIERS", "Problem", "Task", "Verifier", "encode", "load_task", "render"]
