"""The words of a refused value: why a range is what it is, and pydantic's errors in plain terms."""

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ONE_RUN = (
    "a command is one run, and hydra only composes its configuration: options and keys of hydra "
    "have no effect. The folder of a run is recipe.run_dir=...; for several runs give several "
    "commands"
)

# Reasons that the range does not show by itself.
WHY = {
    f"{ROLLOUT}.temperature": "greedy responses of a group are all equal, so none has a signal",
    f"{ROLLOUT}.n": "a group needs other responses to compare a response with",
    f"{ACTOR}.optim.lr": "a rate of 0 or below trains nothing or away from the reward",
    f"{ACTOR}.clip_ratio_c": "verl's dual clip is a bound above the ratio 1",
    "trainer.total_training_steps": "a run of 0 steps would be done before it starts",
    "data.max_response_length": "a response needs room for at least one token",
    "recipe.augment.templates": "to draw one more often use recipe.augment.weights",
}
WORDING = {  # of pydantic's errors that speak of Python
    "string_pattern_mismatch": "must not be empty (is a shell variable not set?)",
    "string_type": "should be text",
    "bool_type": "should be true or false",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "list_type": "should be a list, as [a, b]",
    "tuple_type": "should be a list, as [a, b]",
    "missing": "is missing; the defaults are in recipe/config/recipe.yaml",
    "extra_forbidden": "is not a key of the section recipe",
}
