"""The smallest sweep that ends with a result, as options."""

SMALL = ("--concurrency", "1", "--requests", "4", "--repeats", "1", "--warmup", "1",
         "--memory-repeats", "0", "--canary", "0", "--prefix-cache", "off", "--prefix-tokens", "48",
         "--prompt-tokens", "16", "--output-tokens", "8")  # fmt: skip
