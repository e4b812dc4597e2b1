"""Prompt augmentation for RL with verifiable rewards, on plain texts: no torch, no trainer.

    prompt_aug.questions   Question, parquet files        prompt_aug.templates   load_bank, render
    prompt_aug.draw        which template is drawn        prompt_aug.grading     grade
    prompt_aug.prepare     a data set to parquet          prompt_aug.files       files that survive

Nothing is imported here: commands that must start at once need the errors and the files alone.
"""
