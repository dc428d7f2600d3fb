"""Whether blended KV costs answers: a small model trained for the question, and real vLLM that blends its documents."""
