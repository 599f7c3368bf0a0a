"""Making a draft for one's own target: `run.Distillation` is the whole of `outrider distill`.

    interview, filters, corpus      what the target says: dialogues with itself
    target, features                what it computes meanwhile: hidden states and most probable tokens, on disk
    batches, student, loss, train   learning from that; `head` and `draft` are the two kinds of student
    evaluate, export, report        what came of it

PyTorch and gguf are the extra `outrider[distill]`.
"""
