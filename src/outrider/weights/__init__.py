"""Model files: where they come from (`hub`), what is in them (`gguf`), and their numbers as float32 (`dequantise`)."""
