"""foresay inside verl: its vLLM drafts with our proposer, and hears of every new policy.

    python -m verl.trainer.main_ppo ... \\
        +actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=custom_class

docs/verl.md has all lines. verl loads `plugin` by its entry point in each of its processes; nothing
is imported here, so that whatever fails then fails in there and is printed. Nothing imports verl:
its modules are looked at when they are there.
"""
