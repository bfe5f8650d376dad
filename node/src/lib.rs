//! One binary: an actor-based, distributed agent mesh.
