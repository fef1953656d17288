"""From environments and policies to batches: compiled into one program, or stepped on the host."""
