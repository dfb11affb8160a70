"""Shows what Foveal knows about a model, and the source of each value. Your own values take precedence."""

import foveal

for name in ("gpt-4.1", "anthropic/claude-sonnet-4-6", "my-local-model"):
    model = foveal.model(name)
    print(f"{name}: {model.window:,} tokens ({model.sources['window']}), output up to {model.max_output:,}")

mine = foveal.model("my-local-model", window=32_768, max_output=2_048, input_price=0.0, output_price=0.0)
print(f"{mine.name}: {mine.window:,} tokens ({mine.sources['window']})")
print(foveal.Context(mine).report())
