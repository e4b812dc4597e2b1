"""Prompt augmentation for RL with verifiable rewards on plain text, without torch or a trainer.

    prompt_aug.questions   Question, parquet files        prompt_aug.templates   load_bank, render
    prompt_aug.draw        which template is drawn        prompt_aug.grading     grade
    prompt_aug.prepare     a data set to parquet          prompt_aug.base        files, errors, ...

Nothing is imported here, so that commands that need only errors and files start at once.
"""
