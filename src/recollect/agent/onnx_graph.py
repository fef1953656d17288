"""A policy as an ONNX graph: `observation` in rows to `action` and `sampled_action`."""

from typing import Any

import numpy as np

ACTIVATIONS = {"relu": ("Relu",), "tanh": ("Tanh",), "silu": ("Sigmoid", "Mul")}


class Graph:
    """Nodes and constants under names of their own."""

    def __init__(self):
        from onnx import helper, numpy_helper

        self._helper = helper
        self._numpy = numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._numpy.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def graph(plan: dict[str, Any]) -> bytes:
    """The model, checked, as ONNX writes it.

    Args:
        plan: what the policy consists of; see `export`.

    Raises:
        ValueError: if onnx is not installed.
    """
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise ValueError("ONNX needs a package that is not installed; pip install onnx.") from None
    from recollect.agent.export import OPSET

    made = Graph()
    outputs = _network(made, plan)
    finished = {
        "action": _finish(made, plan, _chosen(made, plan, outputs, sampled=False)),
        "sampled_action": _finish(made, plan, _chosen(made, plan, outputs, sampled=True)),
    }
    for name, node in finished.items():
        made.nodes.append(helper.make_node("Identity", [node], [name]))
    numbers = TensorProto.INT64 if plan["whole"] else TensorProto.FLOAT
    size = plan["weight_0"].shape[1]
    info = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            made.nodes,
            "policy",
            [info("observation", TensorProto.FLOAT, ["batch", size])],
            [info(name, numbers, ["batch", *plan["shape"]]) for name in finished],
            made.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _network(made: Graph, plan: dict[str, Any]) -> str:
    """Standardised observations through all layers."""
    x = made.node("Sub", "observation", made.constant(plan["mean"]))
    x = made.node("Div", x, made.constant(plan["spread"]))
    if np.isfinite(plan["furthest"]):
        x = made.node("Clip", x, made.constant(-plan["furthest"]), made.constant(plan["furthest"]))
    for i in range(plan["layers"]):
        weight, bias = (made.constant(plan[f"{name}_{i}"]) for name in ("weight", "bias"))
        x = made.node("Gemm", x, weight, bias, transB=1)
        if i < plan["layers"] - 1:
            first, *second = ACTIVATIONS[plan["activation"]]
            activated = made.node(first, x)
            x = made.node(second[0], x, activated) if second else activated
    return x


def _chosen(made: Graph, plan: dict[str, Any], outputs: str, sampled: bool) -> str:
    """The action that the head gives, before it is converted for the environment."""
    if plan["head"] != "choices":
        if sampled:
            noise = made.node("RandomNormalLike", outputs, dtype=1)
            spread = made.constant(np.exp(plan["log_std"]))
            outputs = made.node("Add", outputs, made.node("Mul", noise, spread))
        return _squashed(made, plan, outputs) if plan["head"] == "squashed" else outputs
    if plan["probabilities"]:
        outputs = made.node("Log", outputs)
    if sampled:
        # Gumbel noise: the largest of logits with it is a draw from the softmax.
        tiny = made.constant(np.finfo(np.float32).tiny)
        uniform = made.node("Max", made.node("RandomUniformLike", outputs, dtype=1), tiny)
        minus_log = lambda x: made.node("Neg", made.node("Log", x))
        positive = made.node("Max", minus_log(uniform), tiny)
        outputs = made.node("Add", outputs, minus_log(positive))
    parts = []
    begin = 0
    axes = made.constant([1], np.int64)
    for number, count in enumerate(plan["counts"]):
        first, last = (made.constant([end], np.int64) for end in (begin, begin + count))
        part = made.node("ArgMax", made.node("Slice", outputs, first, last, axes), axis=1)
        if plan["grid"].size:
            part = made.node("Gather", made.constant(plan["grid"][number]), part)
        parts.append(part)
        begin += count
    return made.node("Concat", *parts, axis=1)


def _squashed(made: Graph, plan: dict[str, Any], u: str) -> str:
    """Into the bounds by tanh, measured from the nearer bound as `SquashedGaussian` does."""
    least, most = plan["bounds"].T
    twice = made.node("Mul", made.node("Abs", u), made.constant(-2.0))
    distance = made.node("Mul", made.node("Sigmoid", twice), made.constant(most - least))
    above = made.node("Sub", made.constant(most), distance)
    below = made.node("Add", made.constant(least), distance)
    return made.node("Where", made.node("Greater", u, made.constant(0.0)), above, below)


def _finish(made: Graph, plan: dict[str, Any], actions: str) -> str:
    """Shifted, clipped and shaped as the environment takes them."""
    if plan["whole"]:
        actions = made.node("Add", actions, made.constant(plan["start"], np.int64))
    else:
        actions = made.node("Max", actions, made.constant(plan["low"]))
        actions = made.node("Min", actions, made.constant(plan["high"]))
    return made.node("Reshape", actions, made.constant([-1, *plan["shape"]], np.int64))
