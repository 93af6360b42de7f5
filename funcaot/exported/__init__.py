"""Functions as files: ``funcaot.export`` writes an artifact, ``funcaot.load`` runs it.

``__init__`` of the package hands both names to users. Exporting captures and compiles; loading
imports neither the pipeline nor a compiler.
"""
