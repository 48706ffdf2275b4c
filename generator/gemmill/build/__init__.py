"""The build: sources become objects, and objects one versioned extension with its manifest. It never imports torch.

`driver.build` makes a build, `planning.plan` lists the units that it would compile; both take `options.BuildOptions`.
"""
