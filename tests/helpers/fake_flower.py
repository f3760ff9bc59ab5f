"""Flower's public interfaces that `dperm.flower` uses, as far as it uses them, for machines where Flower is not installed.

The names, signatures and the loop of `Strategy.start` are those of Flower 1.42. With Flower installed the tests run on the
real ones.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LoopbackGrid", "install"]


class Array:
    def __init__(self, ndarray: Any) -> None:
        self._values = np.array(ndarray)

    def numpy(self) -> Any:
        return self._values.copy()


class ArrayRecord(dict[str, Array]):
    pass


class ConfigRecord(dict[str, Any]):
    pass


class MetricRecord(dict[str, Any]):
    pass


class RecordDict(dict[str, Any]):
    pass


class Error:
    def __init__(self, code: int, reason: str | None = None) -> None:
        self.code, self.reason = code, reason


@dataclass
class Metadata:
    src_node_id: int
    dst_node_id: int
    group_id: str


class Message:
    def __init__(
        self,
        content: Any = None,
        dst_node_id: int = 0,
        message_type: str = "",
        *,
        error: Error | None = None,
        group_id: str | None = None,
        reply_to: Message | None = None,
    ) -> None:
        if isinstance(content, Error):
            content, error = None, content
        self._content, self.error = content, error
        if reply_to is None:
            self.metadata = Metadata(0, dst_node_id, group_id or "")
        else:
            to = reply_to.metadata
            self.metadata = Metadata(to.dst_node_id, to.src_node_id, to.group_id)

    @property
    def content(self) -> Any:
        if self._content is None:
            raise ValueError("Message content is None.")
        return self._content

    def has_error(self) -> bool:
        return self.error is not None


class MessageType:
    TRAIN = "train"


@dataclass
class Result:
    arrays: Any = None


class Strategy:
    def start(
        self, grid: Any, initial_arrays: Any, num_rounds: int = 3, timeout: float = 3600, train_config: Any = None,
        evaluate_config: Any = None, evaluate_fn: Any = None,
    ) -> Result:  # fmt: skip
        this: Any = self
        this.summary()
        arrays, result = initial_arrays, Result()
        for number in range(1, num_rounds + 1):
            messages = this.configure_train(number, arrays, train_config or ConfigRecord(), grid)
            made, _ = this.aggregate_train(number, grid.send_and_receive(messages=messages, timeout=timeout))
            if made is not None:
                result.arrays = arrays = made
            messages = this.configure_evaluate(number, arrays, evaluate_config or ConfigRecord(), grid)
            this.aggregate_evaluate(number, grid.send_and_receive(messages=messages, timeout=timeout))
        return result


def install() -> bool:
    """Whether Flower is there; where it is not, these classes stand for it."""
    if importlib.util.find_spec("flwr") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that Flower uses
            identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        identity.run_id = identity.node_id = identity.task_id = 1  # as in a server app, where alone messages are made
        return True
    app, strategy = types.ModuleType("flwr.app"), types.ModuleType("flwr.serverapp.strategy")
    for kind in (Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict):
        setattr(app, kind.__name__, kind)
    strategy.Strategy = Strategy  # pyright: ignore[reportAttributeAccessIssue]
    for module in (types.ModuleType("flwr"), app, types.ModuleType("flwr.serverapp"), strategy):
        sys.modules[module.__name__] = module
    return False


class LoopbackGrid:
    """Nodes in this process: `reply(node, message)` gives a node's replies to a message, none where it is gone."""

    def __init__(self, nodes: Iterable[int], reply: Callable[[int, Any], Iterable[Any]]) -> None:
        self.nodes, self.reply = list(nodes), reply
        self.sent: list[list[int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        sent = list(messages)
        self.sent.append([message.metadata.dst_node_id for message in sent])
        return [reply for message in sent for reply in self.reply(message.metadata.dst_node_id, message)]
