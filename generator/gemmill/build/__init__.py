"""Text to objects, objects to one versioned extension with its manifest. Never imports torch.

`driver.build` makes a build, `planning.plan` says what it would compile; both take `options.BuildOptions`.
"""
