"""A server that speaks OpenAI's API and speculates; `outrider serve` runs it. It needs the extra `outrider[serve]`.

A request goes guard -> app (schemas) -> service -> worker (the engine's thread), and its answer comes back by way of
service -> generation -> answer -> stream.
"""
