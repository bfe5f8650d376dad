//! The A2A listener of a node.
