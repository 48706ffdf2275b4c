"""The kernel in CuTe DSL. Importable files, since the DSL reads the source of the functions that it compiles."""
