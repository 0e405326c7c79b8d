from transduce.config import *
def tiny():
    return Config(
        model=ModelConfig(vocab_size=None, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3),
        data=DataConfig(vocab_size=8000, batch_tokens=4096, max_tokens=128),
        train=TrainConfig(max_steps=8000, warmup_steps=2000, lr_factor=2.5, precision="bf16", evaluate_every_steps=250, checkpoint_every_steps=250, keep_checkpoints=10, average_checkpoints=10),
        search=SearchConfig(beam_size=5))
