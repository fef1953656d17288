"""What one does with what was learned: act, evaluate, save, load, go on."""
