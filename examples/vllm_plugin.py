"""Serve a model with vLLM and gemmill's plugin, and print which layers gemmill took.

    python examples/vllm_plugin.py --model /models/Llama-3.1-8B-FP8 --prompt "Kernels are"

Needs a GPU, vLLM 0.33 and gemmill with a build in one environment. vLLM finds the plugin by itself; GEMMILL_VLLM=0 switches it off.
"""

import argparse
import os


def main(arguments: list[str] | None = None) -> None:
    """Generate, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="Kernels are")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # the report is a function that vLLM's worker runs

    from vllm import LLM, SamplingParams

    import gemmill

    llm = LLM(options.model)
    (answer,) = llm.generate([options.prompt], SamplingParams(max_tokens=options.tokens, temperature=0.0))
    print(answer.outputs[0].text)
    for report in llm.apply_model(lambda model: gemmill.serving_report()):
        print(f"{len(report['served'])} kinds of layers are gemmill's, {len(report['left'])} stayed with vLLM")


if __name__ == "__main__":
    main()
