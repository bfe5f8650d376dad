//! The replicated cluster: Raft, log store, membership, sessions, and the ClusterHandle.
