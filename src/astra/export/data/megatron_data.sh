# Data: mock unless DATA_PATH names a preprocessed dataset.
if [ -n "${DATA_PATH:-}" ]; then
  DATA_ARGS=(--data-path "$DATA_PATH" --split "${SPLIT:-99,1,0}")
  DATA_ARGS+=(--tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}")
else
  DATA_ARGS=(--mock-data --tokenizer-type "${TOKENIZER_TYPE:-NullTokenizer}")
fi
if [ -n "${TOKENIZER_MODEL:-}" ]; then DATA_ARGS+=(--tokenizer-model "$TOKENIZER_MODEL"); fi
if [ -n "${SAVE:-}" ]; then DATA_ARGS+=(--save "$SAVE" --load "$SAVE" --save-interval "${SAVE_INTERVAL:-@EVERY}"); fi
