"""The block's hand-written gradients, its laws, its seeds and its refusals."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy.special import erfinv

torch = pytest.importorskip("torch")

from joma_lib import runs  # noqa: E402
from joma_lib._block_step import Adam, Data, Sgd, gradients  # noqa: E402
from joma_lib.block import BlockConfig, smooth_classes, train_block  # noqa: E402

TINY = {"tokens": 5, "nodes": 4, "width": 8, "steps": 30}
ATTENTIONS = ("linear", "exp", "softmax")
ACTIVATIONS = ("linear", "relu", "gelu", "erf", "tanh")
LOSSES = ("cross-entropy", "squared", "linear")


def plain_loss(config, data, z, w, readout=None, skip=None, embedding=None):
    """The block written as one would for autograd, one seed after the other and nothing shared with the library."""
    total = 0.0
    for s in range(z.shape[0]):
        for n in range(data.x.shape[1]):
            x, query = data.x[s, n], int(data.code[s, n].argmax())
            u = z[s, query] / config.temperature
            if config.attention == "softmax":
                b = x * u.exp() / (x * u.exp()).sum()
            elif config.attention == "exp":
                b = x * u.exp() / config.normalizer
            else:
                b = x * u
            f = torch.cat((b, data.code[s, n]))
            f = f if embedding is None else embedding[s] @ f
            f = torch.nn.functional.layer_norm(f, f.shape) if config.layer_norm else f
            p = w[s] @ f
            h = {
                "linear": p,
                "relu": torch.relu(p),
                "gelu": torch.nn.functional.gelu(p),
                "erf": torch.erf(p / math.sqrt(2)),
                "tanh": torch.tanh(p),
            }[config.activation]
            h = h if skip is None else h + skip[s] @ f
            y = h if readout is None else readout[s] @ h
            target = data.targets[s, n]
            if config.loss == "cross-entropy":
                loss = torch.nn.functional.cross_entropy(y[None], target[None])
            else:
                loss = ((y - target) ** 2).sum() / 2 if config.loss == "squared" else -(target * y).sum()
            total = total + loss / data.x.shape[1]
    return total


def random_problem(config, seeds=2, samples=6):
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = torch.rand(seeds, samples, config.tokens, generator=generator, dtype=torch.float64)
    x[:, :, 0] *= torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(
        samples // 2
    )  # an absent token now and then
    x = x / x.sum(-1, keepdim=True)
    code = torch.eye(config.queries, dtype=torch.float64)[torch.arange(samples) % config.queries].repeat(
        seeds, 1, 1
    )
    outputs = config.outputs or config.nodes
    targets = draw(seeds, samples, outputs)
    if config.loss == "cross-entropy":
        targets = torch.softmax(targets, -1)
    mixed = config.embedding == "gaussian" or config.layer_norm
    columns = config.width if mixed else config.tokens + config.queries
    state = {"z": draw(seeds, config.queries, config.tokens), "w": draw(seeds, config.nodes, columns)}
    if config.outputs:
        state["readout"] = draw(seeds, outputs, config.nodes)
    fixed = {"skip": draw(seeds, config.nodes, columns) if config.skip else None}
    fixed["embedding"] = draw(seeds, config.width, config.tokens + config.queries) if mixed else None
    return Data(x, code, targets), state, fixed


VARIANTS = [
    *(
        dict(zip(("attention", "activation", "loss"), choice, strict=True))
        for choice in itertools.product(ATTENTIONS, ACTIVATIONS, LOSSES)
    ),
    *({"attention": kind, "activation": "gelu", "queries": 3} for kind in ATTENTIONS),
    *({"attention": kind, "activation": "tanh", "layer_norm": True} for kind in ATTENTIONS),
    *(
        {"attention": kind, "activation": "tanh", "embedding": "gaussian", "queries": 2}
        for kind in ATTENTIONS
    ),
    *({"attention": kind, "activation": "erf", "outputs": 3, "normalizer": 2.5} for kind in ATTENTIONS),
    *({"attention": kind, "skip": True, "activation": "relu"} for kind in ATTENTIONS),
    {
        "outputs": 3,
        "skip": True,
        "layer_norm": True,
        "embedding": "gaussian",
        "queries": 2,
        "activation": "gelu",
    },
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(map(str, options.values())))
def test_gradients_equal_autograd(options):
    config = BlockConfig(**{**TINY, "temperature": 0.7, **options})
    data, state, fixed = random_problem(config)
    for tensor in state.values():
        tensor.requires_grad_(True)
    loss = plain_loss(config, data, **state, **fixed)
    expected = dict(zip(state, torch.autograd.grad(loss, list(state.values())), strict=True))
    with torch.no_grad():
        found = gradients(config, data, **state, **fixed, want_loss=True)
    assert float(found.loss.sum()) == pytest.approx(float(loss.detach()), rel=1e-12)
    for name, gradient in expected.items():
        got = getattr(found, name)
        assert float((got - gradient).abs().max()) < 1e-12 * max(1.0, float(gradient.abs().max())), name


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9, "decay": 0.1}, {"momentum": 0.0, "decay": 0.0}, {"adam": True, "decay": 0.1}],
)
def test_optimizers_equal_those_of_torch(options):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    ours, theirs = start.clone(), start.clone().requires_grad_(True)
    if options.get("adam"):
        mine = Adam(ours, 0.01, (0.9, 0.99), options["decay"])
        reference = torch.optim.Adam([theirs], 0.01, betas=(0.9, 0.99), weight_decay=options["decay"])
    else:
        mine = Sgd(ours, 0.01, options["momentum"], options["decay"])
        reference = torch.optim.SGD(
            [theirs], 0.01, momentum=options["momentum"], weight_decay=options["decay"]
        )
    for _ in range(20):
        gradient = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        mine.step(gradient)
        theirs.grad = gradient.clone()
        reference.step()
    assert float((ours - theirs.detach()).abs().max()) < 1e-14


@pytest.mark.parametrize("embedding", ["orthonormal", "gaussian"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_training_equals_a_plain_autograd_loop(attention, embedding):
    config = BlockConfig(
        **TINY, attention=attention, activation="tanh", embedding=embedding, outputs=3, init_scale=0.3
    )
    run = train_block(config, seeds=[4], record=10, device="cpu")
    x = torch.from_numpy(run.x.values)
    code = torch.ones(*x.shape[:2], 1, dtype=x.dtype)
    data = Data(x, code, torch.eye(3, dtype=x.dtype)[run.targets.values])
    start = run.isel(step=0)
    z = torch.from_numpy(start.z.values)[:, None].clone().requires_grad_(True)
    readout = torch.from_numpy(start.readout.values).clone().requires_grad_(True)
    if embedding == "orthonormal":
        w = torch.from_numpy(
            np.concatenate((start.v.values, start.bias.values[..., None]), -1)
        ).requires_grad_(True)
        matrix = None
    else:  # the same draws, in the order in which the library makes them
        generator = torch.Generator().manual_seed(4)
        torch.rand(1, 3, 3, generator=generator, dtype=torch.float64)
        torch.randn(1, 5, generator=generator, dtype=torch.float64)
        w = 0.3 * torch.randn(8, 4, generator=generator, dtype=torch.float64).T[None]
        torch.randn(3, 4, generator=generator, dtype=torch.float64)
        matrix = (torch.randn(8, 6, generator=generator, dtype=torch.float64) / math.sqrt(8))[None]
        w = w.clone().requires_grad_(True)
    optimizer = torch.optim.SGD([z, w, readout], lr=config.learning_rate)
    for _ in range(config.steps):
        optimizer.zero_grad()
        loss = plain_loss(config, data, z, w, readout, embedding=matrix)
        loss.backward()
        optimizer.step()
    v = (w if matrix is None else w @ matrix).detach()[..., :5]
    last = run.isel(step=-1)
    assert np.abs(last.z.values - z.detach()[:, 0].numpy()).max() < 1e-12
    assert np.abs(last.v.values - v.numpy()).max() < 1e-12
    assert np.abs(last.readout.values - readout.detach().numpy()).max() < 1e-12


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("attention", ["linear", "exp"])
def test_the_finite_step_identity_is_exact(attention, batch_size):
    config = BlockConfig(
        **{**TINY, "steps": 60},
        attention=attention,
        activation="gelu",
        learning_rate=0.5,
        init_scale=0.3,
        batch_size=batch_size,
    )
    run = train_block(config, seeds=[0, 1, 2], track_updates=True, record=20, device="cpu")
    squares = run.squared_updates_v.sum("node")
    if attention == "linear":
        law, promised = run.z**2 - (run.v**2).sum("node"), run.squared_updates_z - squares
    else:
        law, promised = config.temperature * run.z - 0.5 * (run.v**2).sum("node"), -0.5 * squares
    moved = law - law.isel(step=0)
    assert float(abs(moved).max()) > 1e-4  # there is something to see
    assert float(abs(moved - promised).max()) < 1e-12


def test_the_drift_falls_with_the_step_size_to_the_first_power():
    drifts = []
    for halvings in range(4):
        config = BlockConfig(
            **{**TINY, "steps": 200 * 2**halvings},
            attention="exp",
            activation="tanh",
            learning_rate=0.05 / 2**halvings,
            init_scale=0.3,
        )
        run = train_block(config, seeds=[1], record=[0], device="cpu")
        law = config.temperature * run.z - 0.5 * (run.v**2).sum("node")
        drifts.append(float(abs(law.isel(step=-1) - law.isel(step=0)).max()))
    orders = np.log2(np.array(drifts[:-1]) / drifts[1:])
    assert np.all(abs(orders - 1) < 0.05)


def test_softmax_keeps_the_sum_of_the_logits_of_every_query():
    config = BlockConfig(**TINY, queries=3, activation="relu", init_scale=0.5)
    run = train_block(config, seeds=[0, 1], device="cpu")
    assert run.z.dims == ("seed", "step", "query", "token")
    total = run.z.sum("token")
    assert float(abs(run.z - run.z.isel(step=0)).max()) > 1e-3
    assert float(abs(total - total.isel(step=0)).max()) < 1e-13


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": "exp", "activation": "gelu", "batch_size": 2, "momentum": 0.5},
        {"optimizer": "adam", "queries": 2, "width": 9},
        {"embedding": "gaussian", "layer_norm": True, "skip": True, "outputs": 3, "dtype": "float32"},
    ],
)
def test_a_seed_gives_the_same_numbers_alone_and_in_company(options):
    config = BlockConfig(**{**TINY, **options})
    together = train_block(config, seeds=[3, 0, 8], per_sample=True, device="cpu")
    tolerance = 1e-12 if config.dtype == "float64" else 1e-5
    for seed in (0, 8):
        alone = train_block(config, seeds=seed, per_sample=True, device="cpu")
        for name in alone.data_vars:
            one, two = alone[name], together[name]
            two = two.sel(seed=[seed]) if "seed" in two.dims else two
            assert np.abs(one.values - two.values).max() <= tolerance, name
    assert float(abs(together.z.sel(seed=0) - together.z.sel(seed=8)).max()) > 1e-3


def test_global_state_is_left_as_found():
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    before = (torch.random.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    settings = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    train_block(BlockConfig(**TINY, batch_size=3, embedding="gaussian"), seeds=[0, 1])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert settings == (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())


def test_what_a_run_holds(tmp_path):
    config = BlockConfig(**TINY)
    run = train_block(config, seeds=[2, 5], record=7, per_sample=True)
    assert run.step.values.tolist() == [0, 7, 14, 21, 28, 30]
    assert dict(run.sizes) == {"seed": 2, "step": 6, "token": 5, "node": 4, "sample": 4}
    assert run.z.dims == ("seed", "step", "token") and run.v.dims == ("seed", "step", "node", "token")
    assert json.loads(run.attrs["seeds"]) == [2, 5]
    assert BlockConfig(**json.loads(run.attrs["config"])) == config
    assert float(run.loss.isel(step=0).max()) == pytest.approx(math.log(4), rel=1e-3)
    assert bool((run.loss.diff("step") < 0).all())
    np.testing.assert_allclose(run.mean_attention, run.attention.mean("sample"), atol=1e-14)
    np.testing.assert_allclose(run.attention.sum("token"), 1, atol=1e-12)
    rows = run.attention
    np.testing.assert_allclose(run.entropy, -(rows * np.log(rows)).sum("token").mean("sample"), atol=1e-12)
    back = runs.load_run(runs.save_run(run, tmp_path / "run"))
    np.testing.assert_array_equal(back.v, run.v)


def test_the_signal_is_what_moves_v():
    config = BlockConfig(**TINY, attention="exp", activation="gelu", init_scale=0.5, learning_rate=1e-6)
    run = train_block(config, seeds=[0], record=1, per_sample=True, device="cpu")
    first = run.isel(step=0)
    expected = (first.signal * first.attention).mean("sample")  # Lemma 1: v' = E[g φ' b]
    moved = (run.v.isel(step=1) - first.v) / config.learning_rate
    assert float(abs(moved.transpose(*expected.dims) - expected).max()) < 1e-8


def test_more_is_drawn_for_more_queries_and_the_classes_move_smoothly():
    x, targets, queries = smooth_classes(BlockConfig(queries=2), seed=3)
    assert x.shape == (40, 20) and targets.tolist() == [*range(20)] * 2 and queries.sum() == 20
    again, *_ = smooth_classes(BlockConfig(queries=2), seed=3)
    np.testing.assert_array_equal(x, again)
    ratio = x[:20, :10] / x[:20, :10].sum(1, keepdims=True)
    assert np.all(np.diff(ratio.argmax(1)) >= 0)
    assert x[0, 1] / x[0, 0] == pytest.approx(math.exp(-1 / 30))
    assert x.min() >= 0 and not np.allclose(x[0, 10:], x[20, 10:])


BAD_CONFIGS = [
    ({"attention": "cosine"}, "attention"),
    ({"activation": "swish"}, "activation"),
    ({"optimizer": "lbfgs"}, "optimizer"),
    ({"dtype": "float16"}, "dtype"),
    ({"loss": "hinge"}, "loss"),
    ({"embedding": "learned"}, "embedding"),
    ({"temperature": 0}, "temperature"),
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"learning_rate": float("inf")}, "learning_rate"),
    ({"learning_rate": float("nan")}, "learning_rate"),
    ({"learning_rate": 0.0}, "learning_rate"),
    ({"normalizer": 0.0}, "normalizer"),
    ({"momentum": 1.0}, "momentum"),
    ({"betas": (0.9, 1.0)}, "betas"),
    ({"optimizer": "adam", "momentum": 0.9}, "adam"),
    ({"decay_w": -0.1}, "decay_w"),
    ({"init_scale_z": -1.0}, "init_scale_z"),
    ({"tokens": 30, "width": 30}, "orthonormal"),
    ({"tokens": 0}, "tokens"),
    ({"batch_size": 0}, "batch_size"),
    ({"steps": 0}, "steps"),
]


@pytest.mark.parametrize(("options", "word"), BAD_CONFIGS)
def test_bad_options_are_refused_in_one_sentence(options, word):
    with pytest.raises(ValueError, match=word) as caught:
        BlockConfig(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"steps": 10.0}, {"nodes": True}, {"learning_rate": "0.1"}])
def test_wrong_types_are_refused(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        BlockConfig(**options)


X = np.full((4, 5), 0.2)
BAD_DATA = [
    ({"x": -X, "targets": [0, 1, 2, 3]}, "negative"),
    ({"x": 2 * X, "targets": [0, 1, 2, 3]}, "sums to"),
    ({"x": np.where(X == X, np.nan, X), "targets": [0, 1, 2, 3]}, "finite"),
    ({"x": X[:, :4], "targets": [0, 1, 2, 3]}, "shape"),
    ({"x": X, "targets": [0, 1, 2]}, "targets"),
    ({"x": X, "targets": [0, 1, 2, 4]}, "classes"),
    ({"x": X, "targets": [0.0, 1.0, 2.0, 3.0]}, "integers"),
    ({"x": X, "targets": np.ones((4, 4))}, "probabilities"),
    ({"x": X}, "together"),
    ({"queries": [0, 0, 0, 0]}, "together"),
    ({"x": X, "targets": [0, 1, 2, 3], "queries": [0, 0, 0, 1]}, "queries"),
    ({"seeds": []}, "seeds"),
    ({"seeds": [1, 1]}, "seeds"),
    ({"seeds": -1}, "seed"),
    ({"record": [0, 99]}, "record"),
    ({"record": 0}, "record"),
    ({"device": "tpu9"}, "device"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD_DATA)
def test_bad_data_are_refused_in_one_sentence(arguments, word):
    with pytest.raises(ValueError, match=word) as caught:
        train_block(BlockConfig(**TINY), **arguments)
    assert "\n" not in str(caught.value)


def test_other_losses_need_data_and_a_diverging_run_is_named():
    with pytest.raises(ValueError, match="data set of its own"):
        train_block(BlockConfig(**TINY, loss="squared"))
    with pytest.raises(TypeError, match="BlockConfig"):
        train_block({"steps": 3})
    config = BlockConfig(**{**TINY, "nodes": 1}, attention="exp", loss="linear", learning_rate=50.0)
    with pytest.raises(ValueError, match="seed 0 is not finite any more at step"):
        train_block(config, x=X, targets=np.ones((4, 1)), record=1)


def test_a_constant_signal_moves_v_at_a_constant_rate():
    # Linear activation and loss, uniform data: v' = Δ e^{z/T}, Theorem 2's equation, with z/T = v²/2 + c.
    config = BlockConfig(
        tokens=2,
        nodes=1,
        width=3,
        attention="exp",
        temperature=1.0,
        loss="linear",
        init_scale=0.0,
        learning_rate=5e-4,
        steps=2000,
    )
    x, g = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[2.0], [-1.0]])
    run = train_block(config, x=x, targets=g, record=[2000], device="cpu")
    delta, time = (g * x).mean(0), 2000 * config.learning_rate
    exact = math.sqrt(2) * erfinv(math.sqrt(2 / math.pi) * delta * time)
    assert np.abs(run.v.isel(seed=0, step=-1, node=0).values / exact - 1).max() < 1e-3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-3)])
def test_cuda_agrees_with_the_cpu(dtype, tolerance):
    config = BlockConfig(activation="gelu", steps=200, dtype=dtype)
    cpu, cuda = (train_block(config, seeds=[0, 1], device=device) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(cpu.z.isel(step=0), cuda.z.isel(step=0))
    assert float(abs(cpu.v - cuda.v).max()) < tolerance
    assert train_block(config, device="auto").attrs["device"].startswith("cuda")
