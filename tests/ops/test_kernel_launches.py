"""From sources to a launch: compilation, the table of kernels, their arguments by name, and what they refuse."""

import shutil
import subprocess
from itertools import product

import pytest
import torch

from swila.ops.call import PER_TOKEN, Inputs, Options
from swila.ops.cuda import compiler
from swila.ops.cuda.arguments import Arguments, Field, assertions, read_fields
from swila.ops.cuda.backend import operand_bits, prepared, unsupported
from swila.ops.cuda.specialization import Specialization
from swila.ops.cuda.table import KERNELS, backward_kernel, forward_kernel
from swila.testing import VARIANTS, Shape, make_call, problem_of

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """An empty folder for what NVRTC makes, which needs no GPU."""
    pytest.importorskip("cuda.core")
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("SWILA_CACHE", str(tmp_path))
    return tmp_path


ARCHITECTURES = {"sm_80": 163 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024, "sm_120": 99 * 1024}


@pytest.mark.parametrize(
    ("name", "J", "dtype"),
    [("plain", 4, BF16), ("plain", 8, BF16), ("temporal", 4, BF16), ("gated", 4, BF16), ("gated-value", 4, F32)],
    ids=str,
)
def test_compile_for_every_architecture(compiled, name, J, dtype):
    """NVRTC takes the sources, a GPU or not; what it made is found again on disk."""
    call = make_call(VARIANTS[name], Shape(B=1, T=1, H=1, K=32, V=32, J=J), dtype=dtype)
    x = Inputs.of([*(call.get(key) for key in PER_TOKEN), *call["initial_state"]])
    spec = Specialization.of(x, Options(call["decay_order"], call["normalize"]))
    kernels = {forward_kernel(spec), backward_kernel(spec, 132, 132), "step"}
    kernels |= {backward_kernel(spec, 1, 132), "sum_parts"} if (name, J) == ("plain", 4) else set()
    kernels |= {"states"} if spec.decay else set()
    kernels |= {"prepare", "backward_keys"} if name == "gated" else set()
    everywhere = (name, J) in (("plain", 4), ("gated", 4))  # the others on the oldest and the newest
    limits = {arch: limit for arch, limit in ARCHITECTURES.items() if everywhere or arch in ("sm_80", "sm_120")}
    for kernel, (arch, limit) in product(sorted(kernels), limits.items()):
        defines = spec.defines(KERNELS[kernel].warps(spec), SHARED_LIMIT=limit, STATS=0)
        code = compiler.compile_cubin(kernel, defines, arch, driver=0)
        assert code[:4] == b"\x7fELF"
        assert compiler.compile_cubin(kernel, defines, arch, driver=0) == code
    assert len([path for path in compiled.rglob("*") if path.is_file()]) >= len(kernels) * len(limits)


def test_compiled_kernels_are_kept_by_all_that_they_depend_on(compiled, monkeypatch):

    def kept(text="*x = N;", defines=None, arch="sm_80", driver=1):
        monkeypatch.setattr(compiler, "source", lambda kernel: f"__global__ void swila_{kernel}(int* x) {{ {text} }}")
        compiler.compile_cubin("small", defines or {"N": "1"}, arch, driver)
        return len([path for path in compiled.rglob("*") if path.is_file() and path.stat().st_size > 500])

    first = kept()
    assert kept() == first
    others = [{"text": "*x = N + 1;"}, {"defines": {"N": "2"}}, {"arch": "sm_90"}, {"driver": 2}]
    assert [kept(**change) for change in others] == [first + 1, first + 2, first + 3, first + 4]


def test_every_source_is_in_the_table():
    assert set(KERNELS) == {
        path.name.removesuffix(".cu") for path in compiler.SOURCES.iterdir() if path.suffix == ".cu"
    }


SOURCE = """
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
typedef long long i64;
typedef float TX;
typedef double TD;
struct Arguments {
  const TX *q, *k;  // [T, K]; inputs
  TD* decay;
  i64 N;
};
"""
FIELDS = (Field("q", "const TX*"), Field("k", "const TX*"), Field("decay", "TD*"), Field("N", "i64"))


def test_fields_are_read_from_the_source():
    assert read_fields(SOURCE) == FIELDS
    for declaration in ("int N;", "TX x;", "const TX** q;", "i64* N;", "TX q[2];", "TX *q, k;"):
        with pytest.raises(ValueError, match="expected pointers or i64, got"):
            read_fields(SOURCE.replace("i64 N;", declaration))
    with pytest.raises(ValueError, match="no struct Arguments"):
        read_fields("")


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS,
        (FIELDS[1], FIELDS[0], *FIELDS[2:]),  # two of one type swapped
        FIELDS[:3],
        FIELDS[1:],
        (*FIELDS, Field("T", "i64")),
        (Field("q", "const TD*"), *FIELDS[1:]),
        (Field("q", "TX*"), *FIELDS[1:]),
    ],
    ids=str,
)
def test_only_the_fields_of_the_struct_compile(fields):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=SOURCE + assertions(fields), text=True, capture_output=True)
    assert (done.returncode == 0) == (fields == FIELDS), done.stderr


def test_arguments_are_packed_by_name():
    struct, q, k = Arguments("small", FIELDS), torch.zeros(2), torch.zeros(3)
    values = {"N": 7, "decay": None, "k": k, "q": q}
    assert list(struct.pack(values)) == [q.data_ptr(), k.data_ptr(), 0, 7]
    with pytest.raises(TypeError, match=r"small kernel: missing \['q'\], unknown \[\]"):
        struct.pack({name: value for name, value in values.items() if name != "q"})
    with pytest.raises(TypeError, match=r"missing \[\], unknown \['T'\]"):
        struct.pack({**values, "T": 1})
    with pytest.raises(TypeError, match=r"missing \['N'\], unknown \['n'\]"):
        struct.pack({"n" if name == "N" else name: value for name, value in values.items()})


def test_arguments_have_the_types_of_their_fields():
    call = make_call(VARIANTS["gated"], Shape(T=1, H=1, J=2), dtype=BF16)
    spec = Specialization.of(Inputs(*(call[name] for name in PER_TOKEN[:7])), Options())._replace(d_type="float")
    struct, x = Arguments("small", (*FIELDS, Field("kept", "float4_*"), Field("any", "void*"))), torch.zeros(1)
    right = {"q": x.bfloat16(), "k": None, "decay": x, "N": 1, "kept": x, "any": x.half()}
    struct.check_types(spec, right)
    for wrong in ({"q": x}, {"q": 1}, {"decay": x.bfloat16()}, {"N": None}, {"N": x}, {"kept": x.int()}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} of the small kernel must be"):
            struct.check_types(spec, right | wrong)


def test_inputs_that_need_no_change_are_passed_on():
    call = make_call(VARIANTS["gated-temporal"], Shape(B=1, T=4, H=2, K=16, V=16, J=2), dtype=BF16)
    x = Inputs.of([*(call[name] for name in PER_TOKEN), *call["initial_state"]])
    assert prepared(x) is x
    changed = prepared(
        x._replace(q=x.q.detach().transpose(1, 2).contiguous().transpose(1, 2), key_gate=x.key_gate.float())
    )
    assert all(t is None or t.is_contiguous() for t in changed)
    assert {changed.beta.dtype, changed.key_gate.dtype, changed.query_logits.dtype} == {F32}
    assert changed.k is x.k
    unaligned = torch.zeros(x.k.numel() + 1, dtype=BF16)[1:].view_as(x.k)
    assert prepared(x._replace(k=unaligned)).k.data_ptr() % 16 == 0


def test_bounds_are_read_in_their_dtype():
    call = make_call(VARIANTS["plain"], Shape(H=1, J=2), lengths=[3, 2])
    x = Inputs(*(call[name] for name in PER_TOKEN[:6]))
    for bounds, index in ((None, "i64"), (call["cu_seqlens"], "i64"), (call["cu_seqlens"].int(), "int")):
        assert Specialization.of(x._replace(cu_seqlens=bounds), Options()).index_type == index


def test_precision_of_operands():
    assert [operand_bits(dtype) for dtype in (BF16, F16, F32)] == [8, 16, 16]


def test_refusals_say_what_is_needed():
    for changes, words in (
        ({"K": 48}, "K must be one of 16, 32, 64, 128, got 48"),
        ({"V": 8}, "V must be one of 16, 32, 64, 128, got 8"),
        ({"J": 17}, "up to 16 mixtures, got J = 17"),
    ):
        problem = problem_of(make_call(VARIANTS["plain"], Shape(**{"K": 16, "V": 16, "J": 2} | changes)))
        assert words in unsupported(problem)
    assert "float64" in unsupported(problem_of(make_call(dtype=torch.float64)))
    assert "up to 4 mixtures" in unsupported(problem_of(make_call(VARIANTS["gated"], Shape(J=5))))
    assert "up to 2 mixtures" in unsupported(problem_of(make_call(VARIANTS["gated"], Shape(T=1, K=128, J=3))))
    assert unsupported(problem_of(make_call(VARIANTS["gated"], Shape(T=1, K=128, J=4), dtype=BF16))) is None


def specialization(name="plain", K=64, V=64, J=4, dtype=BF16):
    call = make_call(VARIANTS[name], Shape(B=1, T=1, H=1, K=K, V=V, J=J), dtype=dtype)
    x = Inputs.of([*(call.get(key) for key in PER_TOKEN), *call["initial_state"]])
    return Specialization.of(x, Options(call["decay_order"], call["normalize"]))


@pytest.mark.parametrize(
    ("units", "forward", "backward"), [(8, 1, 1), (33, 2, 2), (34, 4, 4), (66, 4, 4), (67, 8, 4), (500, 8, 4)]
)
def test_heads_are_spread_over_idle_multiprocessors(units, forward, backward):
    """Blocks are halved as long as twice as many still find a multiprocessor each."""
    spec, processors = specialization(), 132
    assert KERNELS["forward_split"].most_warps(spec, units, processors) == forward
    assert KERNELS["backward_split"].most_warps(spec, units, processors) == backward
    assert KERNELS["backward"].most_warps(spec, units, processors) == 8  # never


@pytest.mark.parametrize(("J", "V", "warps"), [(4, 64, 8), (3, 128, 8), (2, 128, 4), (2, 64, 4), (2, 16, 1)])
def test_blocks_of_the_split_forward_have_up_to_64_output_dims(J, V, warps):
    """More warps would have too few registers."""
    spec = specialization(J=J, V=V)
    assert KERNELS["forward_split"].most_warps(spec, 500, 132) == warps
    assert warps * (32 // (4 if J > 2 else 2)) <= 64


@pytest.mark.parametrize(
    ("spec", "units", "split"),
    [
        ({}, 66, True),
        ({}, 67, False),
        ({"name": "temporal"}, 8, True),
        ({"name": "gated"}, 8, False),
        ({"J": 5}, 8, False),
        ({"J": 1}, 8, False),
        ({"K": 128}, 8, False),
        ({"dtype": F32}, 8, False),
    ],
    ids=str,
)
def test_backward_of_few_heads(spec, units, split):
    assert backward_kernel(specialization(**spec), units, 132) == ("backward_split" if split else "backward")
